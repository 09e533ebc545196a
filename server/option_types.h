// The pieces that the table of options is made of: value types beyond Abseil's own, and the bounds
// that values must keep. Stateless.
#ifndef ATTND_SERVER_OPTION_TYPES_H_
#define ATTND_SERVER_OPTION_TYPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/logging.h"
#include "server/store/log_writer.h"

namespace attnd::server {

// A flag in bytes; see byte_size.h for how it is written.
struct ByteSize {
  std::int64_t bytes = 0;
};

// Found by Abseil's flags. Debian's absl::string_view is a type of its own; it stays inside this
// corner.
bool AbslParseFlag(absl::string_view text, ByteSize* value, std::string* error);
bool AbslParseFlag(absl::string_view text, FsyncPolicy* value, std::string* error);
bool AbslParseFlag(absl::string_view text, LogFormat* value, std::string* error);
bool AbslParseFlag(absl::string_view text, LogLevel* value, std::string* error);
std::string AbslUnparseFlag(ByteSize value);
std::string AbslUnparseFlag(FsyncPolicy value);
std::string AbslUnparseFlag(LogFormat value);
std::string AbslUnparseFlag(LogLevel value);

// What a text must be to parse as a value, such as "a whole number".
const char* Expected(bool);
const char* Expected(std::int64_t);
const char* Expected(ByteSize);
const char* Expected(absl::Duration);
const char* Expected(FsyncPolicy);
const char* Expected(LogFormat);
const char* Expected(LogLevel);
const char* Expected(const std::string&);

// Bounds. Refuse() gives an empty text for a value within them, otherwise the end of the sentence
// "--name is VALUE; ", such as "it must be at least 1".

struct Any {
  template <typename T>
  std::string Refuse(const T&) const {
    return {};
  }
};

struct IntegerRange {
  std::int64_t least;
  std::int64_t most;
  std::string Refuse(std::int64_t value) const;
  std::string Refuse(ByteSize value) const;
};

struct DurationRange {
  absl::Duration least;
  std::string Refuse(absl::Duration value) const;
};

struct IsAddress {
  bool or_empty = false;
  std::string Refuse(const std::string& value) const;
};

struct OneOf {
  std::vector<std::string> names;
  std::string Refuse(const std::string& value) const;
};

IntegerRange AtLeast(std::int64_t least);
// And at most ten years, which leaves room in 64-bit nanoseconds for any sum with a time.
DurationRange AtLeast(absl::Duration least);
IntegerRange Between(std::int64_t least, std::int64_t most);

}  // namespace attnd::server

#endif  // ATTND_SERVER_OPTION_TYPES_H_
