// The command line of attnctl. The only file that knows the parser.
#ifndef ATTND_CLIENT_ATTNCTL_COMMAND_LINE_H_
#define ATTND_CLIENT_ATTNCTL_COMMAND_LINE_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/attnctl/completion.h"
#include "client/attnctl/context.h"

namespace attnd::attnctl {

struct CommandLine {
  Context context;
  // The command that was given; for error messages.
  std::string name;
  std::function<absl::Status(const Context&)> run;
  // Set when nothing is to be run: help was printed (0) or the usage is wrong (2).
  std::optional<int> exit_code;
};

// Prints help to standard output and a usage error, one line, to standard error.
CommandLine ParseCommandLine(int argc, const char* const* argv);

// The tree of commands and options that ParseCommandLine accepts.
CommandSpec DescribeCommandLine();

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_COMMAND_LINE_H_
