// Text of unknown origin, made safe for a line of the log.
//
// Stateless. Output is valid UTF-8 without line breaks, control characters or characters that
// change the direction of text, whatever the input holds.
#ifndef ATTND_SERVER_LOG_TEXT_H_
#define ATTND_SERVER_LOG_TEXT_H_

#include <string>
#include <string_view>

namespace attnd::server {

// Appends `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD; of more
// than 1,024 bytes the rest is replaced by "...".
void AppendJsonString(std::string& out, std::string_view text);

// Appends `text` bare if it is a word of printable ASCII without quotes, backslashes and equals
// signs, otherwise as AppendJsonString does.
void AppendLogfmtValue(std::string& out, std::string_view text);

}  // namespace attnd::server

#endif  // ATTND_SERVER_LOG_TEXT_H_
