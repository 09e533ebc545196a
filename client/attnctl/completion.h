// Shell completion, generated from the command tree that parses the command line, so that the two
// cannot differ. Pure functions.
#ifndef ATTND_CLIENT_ATTNCTL_COMPLETION_H_
#define ATTND_CLIENT_ATTNCTL_COMPLETION_H_

#include <string>
#include <vector>

namespace attnd::attnctl {

struct OptionSpec {
  // "--keys", "-k"; empty for an argument without a name.
  std::vector<std::string> names;
  std::string description;
  // Flags take no value.
  bool takes_value = true;
  bool takes_file = false;
  // The only values allowed; empty: any.
  std::vector<std::string> choices;
};

struct CommandSpec {
  std::string name;
  std::string description;
  std::vector<OptionSpec> options;
  std::vector<CommandSpec> commands;
};

std::string BashCompletion(const CommandSpec& program);
std::string ZshCompletion(const CommandSpec& program);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_COMPLETION_H_
