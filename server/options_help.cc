#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/option_table.h"
#include "server/options.h"

namespace attnd::server {
namespace {

constexpr char kOpening[] =
    R"(attnd is a long-context attention service: sessions take keys and values as a context grows and
answer attention queries over all of it, over gRPC.

Usage: attnd [--option=value ...]

Options are shown with their defaults. Each can also be set by an environment variable
(ATTND_MAX_SESSIONS for --max_sessions) or in a file of options, one a line. The command line goes
before the environment, and the environment before files.
Sizes are written 64KiB, 8MiB, 2GiB; durations 500ms, 30s, 1h30m.
)";

constexpr char kClosing[] = R"(
Further
  --flagfile=FILE
      Reads options from a file, one a line; # begins a comment line.
  --help, --help=markdown
      This text; the table of options in Markdown.
  --version
      The version.
)";

// Lines of at most 92 columns, each after six spaces.
std::string Wrapped(const std::string& text) {
  constexpr std::size_t kColumns = 92;
  std::string out = "     ";
  std::size_t column = out.size();
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    if (column + 1 + word.size() > kColumns) {
      out += "\n     ";
      column = 5;
    }
    absl::StrAppend(&out, " ", word);
    column += 1 + word.size();
  }
  return out + "\n";
}

}  // namespace

std::string HelpText() {
  std::string text = kOpening;
  std::string group;
  for (const OptionRow& row : OptionTable()) {
    if (row.group != group) {
      group = row.group;
      absl::StrAppend(&text, "\n", group, "\n");
    }
    absl::StrAppend(&text, "  --", row.name, "=", row.default_value, "\n", Wrapped(row.help));
  }
  return text + kClosing;
}

std::string HelpMarkdown() {
  std::string text = "| option | default | meaning |\n|---|---|---|\n";
  for (const OptionRow& row : OptionTable()) {
    const std::string value =
        row.default_value.empty() ? "" : absl::StrCat("`", row.default_value, "`");
    absl::StrAppend(&text, "| `--", row.name, "` | ", value, " | ",
                    absl::StrReplaceAll(row.help, {{"|", "\\|"}}), " |\n");
  }
  return text;
}

}  // namespace attnd::server
