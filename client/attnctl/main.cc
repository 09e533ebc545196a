// attnctl: the command line client.
//
// Exit status: 0 done, 1 the call failed, 2 the command line is wrong.
#include <string>

#include "absl/strings/str_format.h"
#include "client/attnctl/command_line.h"
#include "client/error.h"

int main(int argc, char** argv) {
  const attnd::attnctl::CommandLine line = attnd::attnctl::ParseCommandLine(argc, argv);
  if (line.exit_code.has_value()) return *line.exit_code;
  const absl::Status status = line.run(line.context);
  if (status.ok()) return 0;
  const std::string reason = attnd::client::ErrorReasonOf(status);
  const std::string advice = attnd::client::AdviceFor(status);
  absl::FPrintF(stderr, "attnctl %s: %s%s%s%s\n", line.name, status.message(),
                reason.empty() ? "" : " [" + reason + "]", advice.empty() ? "" : "; ", advice);
  return 1;
}
