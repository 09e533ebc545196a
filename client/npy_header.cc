#include "client/npy_header.h"

#include <cstddef>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attnd::client {
namespace {

constexpr std::size_t kMaxDimensions = 32;
constexpr std::size_t kMaxDescr = 64;

absl::Status Malformed(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("npy header: ", what));
}

class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  absl::StatusOr<NpyHeader> Parse() {
    if (!Take('{')) return Malformed("does not begin with '{'");
    while (!Take('}')) {
      if (const absl::Status status = ParseEntry(); !status.ok()) return status;
      if (Take(',')) continue;
      if (!Take('}')) return Malformed("expected ',' or '}' after an entry");
      break;
    }
    SkipSpace();
    if (at_ != text_.size()) return Malformed("text after the dictionary");
    if (!seen_descr_ || !seen_order_ || !seen_shape_) {
      return Malformed("one of 'descr', 'fortran_order' and 'shape' is missing");
    }
    return header_;
  }

 private:
  absl::Status ParseEntry() {
    std::string_view key;
    if (!TakeString(&key)) return Malformed("a key is not a string");
    if (!Take(':')) return Malformed("expected ':' after a key");
    if (key == "descr") {
      std::string_view descr;
      if (seen_descr_ || !TakeString(&descr)) {
        return Malformed("'descr' is not one string (structured types are not supported)");
      }
      if (descr.size() > kMaxDescr) return Malformed("'descr' is too long");
      seen_descr_ = true;
      header_.descr = std::string(descr);
      return absl::OkStatus();
    }
    if (key == "fortran_order") {
      const bool is_true = TakeWord("True");
      if (seen_order_ || (!is_true && !TakeWord("False"))) {
        return Malformed("'fortran_order' is not one of True and False");
      }
      seen_order_ = true;
      header_.fortran_order = is_true;
      return absl::OkStatus();
    }
    if (key == "shape") {
      if (seen_shape_) return Malformed("'shape' stands twice");
      seen_shape_ = true;
      return ParseShape();
    }
    return Malformed("unknown key");
  }

  absl::Status ParseShape() {
    if (!Take('(')) return Malformed("'shape' is not a tuple");
    while (!Take(')')) {
      std::int64_t size = 0;
      if (!TakeNumber(&size)) return Malformed("'shape' holds no integer of at most 63 bits");
      if (header_.shape.size() == kMaxDimensions) return Malformed("'shape' has over 32 sizes");
      header_.shape.push_back(size);
      if (Take(',')) continue;
      if (!Take(')')) return Malformed("'shape' is not closed");
      break;
    }
    return absl::OkStatus();
  }

  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool Take(char wanted) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  bool TakeWord(std::string_view word) {
    SkipSpace();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool TakeString(std::string_view* out) {
    SkipSpace();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return false;
    *out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return true;
  }

  bool TakeNumber(std::int64_t* out) {
    SkipSpace();
    const std::size_t begin = at_;
    std::int64_t number = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (__builtin_mul_overflow(number, std::int64_t{10}, &number) ||
          __builtin_add_overflow(number, std::int64_t{text_[at_] - '0'}, &number)) {
        return false;
      }
      ++at_;
    }
    *out = number;
    return at_ > begin;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  NpyHeader header_;
  bool seen_descr_ = false;
  bool seen_order_ = false;
  bool seen_shape_ = false;
};

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view text) {
  return HeaderParser(text).Parse();
}

}  // namespace attnd::client
