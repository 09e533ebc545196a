#include "server/log_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

namespace attnd::server {
namespace {

constexpr std::size_t kMaxBytes = 1024;

struct Rune {
  char32_t value = 0xFFFD;
  std::size_t bytes = 1;
  bool valid = false;
};

// The first character of `text`, which is not empty. Overlong forms, surrogates and numbers beyond
// U+10FFFF are not valid (RFC 3629).
Rune FirstRune(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1, true};
  }
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) {
    return {};
  }
  char32_t value = lead & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return {};
    }
    value = (value << 6U) | (byte(i) & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[bytes] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
    return {};
  }
  return {value, bytes, true};
}

// Controls, line and paragraph separators, and the marks that let text appear in another order than
// it has.
bool MustEscape(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0x200E ||
         c == 0x200F || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

void AppendJsonString(std::string& out, std::string_view text) {
  const std::size_t begin = out.size();
  out += '"';
  while (!text.empty()) {
    if (out.size() - begin > kMaxBytes) {
      out += "...";
      break;
    }
    const Rune rune = FirstRune(text);
    if (!rune.valid) {
      out += "\xEF\xBF\xBD";
    } else if (rune.value == '"' || rune.value == '\\') {
      out += '\\';
      out += text[0];
    } else if (MustEscape(rune.value)) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<std::uint32_t>(rune.value));
    } else {
      out.append(text.substr(0, rune.bytes));
    }
    text.remove_prefix(rune.bytes);
  }
  out += '"';
}

void AppendLogfmtValue(std::string& out, std::string_view text) {
  const bool bare = !text.empty() && text.size() <= kMaxBytes &&
                    std::all_of(text.begin(), text.end(), [](char c) {
                      return c > ' ' && c < 0x7F && c != '"' && c != '\\' && c != '=';
                    });
  if (bare) {
    out.append(text);
  } else {
    AppendJsonString(out, text);
  }
}

}  // namespace attnd::server
