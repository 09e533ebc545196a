// The table of all options: the one source of parsing, of checking, of the help and of the README's
// table.
//
// Immutable after the first use; thread-safe. The values themselves are Abseil flags, process-wide.
#ifndef ATTND_SERVER_OPTION_TABLE_H_
#define ATTND_SERVER_OPTION_TABLE_H_

#include <functional>
#include <string>
#include <vector>

#include "server/options.h"

namespace attnd::server {

struct OptionRow {
  std::string group;
  std::string name;  // of the flag, without dashes
  std::string help;
  std::string expected;  // what a text must be to parse
  std::string default_value;
  bool is_bool;
  bool is_text;
  // Sets the flag; false where `text` does not parse.
  std::function<bool(const std::string& text)> parse;
  // The flag's value as text.
  std::function<std::string()> value;
  // Copies the flag's value into `options`, or says how it is out of bounds ("it must be ...").
  std::function<std::string(Options& options)> apply;
};

// In the order of the help.
const std::vector<OptionRow>& OptionTable();

// Null where there is none.
const OptionRow* FindOption(const std::string& name);

}  // namespace attnd::server

#endif  // ATTND_SERVER_OPTION_TABLE_H_
