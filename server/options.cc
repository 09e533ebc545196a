#include "server/options.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "server/byte_size.h"
#include "server/cpu_quota.h"
#include "server/option_table.h"
#include "server/version.h"

namespace attnd::server {
namespace {

constexpr char kFlagFile[] = "flagfile";

// One option as it was written.
struct Setting {
  std::string name;
  std::string value;
  std::string origin;  // how messages name it, such as "--workers (from ATTND_WORKERS)"
};

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::CEscape(text), "\"");
}

absl::Status Unknown(const std::string& text, const std::string& where) {
  return absl::InvalidArgumentError(
      absl::StrCat("unknown option ", absl::CEscape(text), where, "; attnd --help lists all"));
}

// Reads `--name=value`, `--name value`, `--flag` and `--noflag` from words[i], and moves i behind
// it. where: what follows a name in messages, such as " (at attnd.flags:3)".
absl::StatusOr<Setting> ReadSetting(const std::vector<std::string>& words, std::size_t& i,
                                    const std::string& where) {
  const std::string& word = words[i++];
  const std::size_t dashes = absl::StartsWith(word, "--") ? 2 : absl::StartsWith(word, "-") ? 1 : 0;
  if (dashes == 0 || word.size() == dashes) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument ", Quoted(word), where,
                                                   "; options are written --name=value"));
  }
  const std::size_t equals = word.find('=');
  Setting setting;
  setting.name = word.substr(dashes, equals == std::string::npos ? equals : equals - dashes);
  const OptionRow* row = FindOption(setting.name);
  if (row == nullptr && equals == std::string::npos && absl::StartsWith(setting.name, "no")) {
    row = FindOption(setting.name.substr(2));
    if (row != nullptr && row->is_bool) {
      return Setting{row->name, "false", absl::StrCat("--", setting.name, where)};
    }
    row = nullptr;
  }
  if (row == nullptr && setting.name != kFlagFile) {
    return Unknown(word.substr(0, equals), where);
  }
  setting.origin = absl::StrCat("--", setting.name, where);
  if (equals != std::string::npos) {
    setting.value = word.substr(equals + 1);
  } else if (row != nullptr && row->is_bool) {
    setting.value = "true";
  } else if (i < words.size()) {
    setting.value = words[i++];
  } else {
    return absl::InvalidArgumentError(absl::StrCat(setting.origin, " needs a value"));
  }
  return setting;
}

// A flag file holds one option a line; blank lines and lines that begin with # or // are skipped.
absl::StatusOr<std::vector<Setting>> ReadFlagFile(const Setting& flag_file) {
  const std::string& path = flag_file.value;
  std::ifstream file(path);
  std::vector<Setting> settings;
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string text(absl::StripAsciiWhitespace(line));
    if (text.empty() || text[0] == '#' || absl::StartsWith(text, "//")) {
      continue;
    }
    const std::vector<std::string> words = {text};
    std::size_t i = 0;
    absl::StatusOr<Setting> setting =
        ReadSetting(words, i, absl::StrCat(" (at ", absl::CEscape(path), ":", number, ")"));
    if (!setting.ok()) {
      return setting.status();
    }
    if (setting->name == kFlagFile) {
      return absl::InvalidArgumentError(
          absl::StrCat(setting->origin, " is refused; a flag file cannot name another"));
    }
    settings.push_back(*setting);
  }
  if (!file.eof()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag_file.origin, " is ", Quoted(path), "; the file cannot be read"));
  }
  return settings;
}

std::string VariableOf(const std::string& option) {
  return absl::StrCat("ATTND_", absl::AsciiStrToUpper(option));
}

// Collects settings from all sources, weakest first.
absl::StatusOr<std::vector<Setting>> Gather(const std::vector<std::string>& words,
                                            const EnvironmentLookup& environment) {
  std::vector<Setting> files;
  std::vector<Setting> direct;
  const auto from_environment = [&environment](const std::string& name,
                                               std::vector<Setting>& settings) {
    const std::string variable = VariableOf(name);
    if (const char* const value = environment(variable); value != nullptr) {
      settings.push_back({name, value, absl::StrCat("--", name, " (from ", variable, ")")});
    }
  };
  from_environment(kFlagFile, files);
  for (const OptionRow& row : OptionTable()) {
    from_environment(row.name, direct);
  }
  for (std::size_t i = 0; i < words.size();) {
    absl::StatusOr<Setting> setting = ReadSetting(words, i, "");
    if (!setting.ok()) {
      return setting.status();
    }
    (setting->name == kFlagFile ? files : direct).push_back(*setting);
  }
  std::vector<Setting> all;
  for (const Setting& file : files) {
    absl::StatusOr<std::vector<Setting>> settings = ReadFlagFile(file);
    if (!settings.ok()) {
      return settings.status();
    }
    all.insert(all.end(), settings->begin(), settings->end());
  }
  all.insert(all.end(), direct.begin(), direct.end());
  return all;
}

// Values that are fine alone and not together.
absl::Status CheckTogether(const Options& options) {
  if (options.default_time_to_live > options.max_time_to_live) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--default_time_to_live is ", absl::FormatDuration(options.default_time_to_live),
        "; it must be at most --max_time_to_live, which is ",
        absl::FormatDuration(options.max_time_to_live)));
  }
  // A call holds its request and its answer, so a smaller budget could never admit the largest one.
  const std::int64_t call = options.max_message_bytes + options.max_response_bytes;
  if (options.max_inflight_bytes < call) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_inflight_bytes is ", FormatByteSize(options.max_inflight_bytes),
        "; it must be at least --max_message_bytes plus --max_response_bytes, which is ",
        FormatByteSize(call)));
  }
  if (options.max_feature_map_size > options.max_feature_map_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_feature_map_size is ", FormatByteSize(options.max_feature_map_size),
                     "; it must be at most --max_feature_map_bytes, which is ",
                     FormatByteSize(options.max_feature_map_bytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Options> ReadOptions(const std::vector<std::string>& words,
                                    const EnvironmentLookup& environment) {
  for (const OptionRow& row : OptionTable()) {
    row.parse(row.default_value);  // each call starts from the defaults
  }
  const absl::StatusOr<std::vector<Setting>> settings = Gather(words, environment);
  if (!settings.ok()) {
    return settings.status();
  }
  std::map<std::string, std::string> origins;  // of the setting that decides, by option
  for (const Setting& setting : *settings) {
    const OptionRow& row = *FindOption(setting.name);
    if (!row.parse(setting.value)) {
      return absl::InvalidArgumentError(absl::StrCat(setting.origin, " is ", Quoted(setting.value),
                                                     "; it must be ", row.expected));
    }
    origins[setting.name] = setting.origin;
  }
  Options options;
  for (const OptionRow& row : OptionTable()) {
    if (const std::string refusal = row.apply(options); !refusal.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(origins[row.name], " is ", row.is_text ? Quoted(row.value()) : row.value(),
                       "; ", refusal));
    }
  }
  if (const absl::Status status = CheckTogether(options); !status.ok()) {
    return status;
  }
  ResolveAutomatic(options);
  return options;
}

}  // namespace

void ResolveAutomatic(Options& options, const SystemRoot& root) {
  if (options.workers == 0) {
    options.workers = UsableCpus(root);
  }
  if (options.max_state_bytes == 0) {
    constexpr std::int64_t kUnknownMachine = std::int64_t{1} << 30;
    options.max_state_bytes = MemoryLimit(root).value_or(kUnknownMachine) / 4 * 3;
  }
}

absl::StatusOr<CommandLine> ParseOptions(int argc, const char* const* argv) {
  return ParseOptions(argc, argv,
                      [](const std::string& name) { return std::getenv(name.c_str()); });
}

absl::StatusOr<CommandLine> ParseOptions(int argc, const char* const* argv,
                                         const EnvironmentLookup& environment) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  CommandLine result;
  for (const std::string& word : words) {
    if (word == "--help" || word == "-help" || word == "-h") {
      result.text = HelpText();
    } else if (word == "--help=markdown") {
      result.text = HelpMarkdown();
    } else if (word == "--version") {
      result.text = absl::StrCat("attnd ", Version(), " (", Compiler(), ")\n");
    }
    if (!result.text.empty()) {
      return result;
    }
  }
  absl::StatusOr<Options> options = ReadOptions(words, environment);
  if (!options.ok()) {
    return options.status();
  }
  result.options = *std::move(options);
  return result;
}

}  // namespace attnd::server
