// attnctl create, get, list, update, flush, delete and info.
#ifndef ATTND_CLIENT_ATTNCTL_SESSION_COMMANDS_H_
#define ATTND_CLIENT_ATTNCTL_SESSION_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/attnctl/context.h"
#include "client/attnctl/session_flags.h"

namespace attnd::attnctl {

struct CreateCommand {
  SessionFlags session;
  // Instead of the flags; empty: none.
  std::string config_file;
  // Empty: a new one.
  std::string id;
};
absl::Status Run(const Context& context, const CreateCommand& command);

struct GetCommand {
  std::string id;
};
absl::Status Run(const Context& context, const GetCommand& command);

struct ListCommand {
  std::vector<std::string> labels;
  // Sessions at most; 0: all.
  std::int64_t limit = 0;
};
absl::Status Run(const Context& context, const ListCommand& command);

struct UpdateCommand {
  std::string id;
  std::string time_to_live;
  std::vector<std::string> labels;
  bool clear_labels = false;
};
absl::Status Run(const Context& context, const UpdateCommand& command);

struct FlushCommand {
  std::string id;
};
absl::Status Run(const Context& context, const FlushCommand& command);

struct DeleteCommand {
  std::vector<std::string> ids;
};
absl::Status Run(const Context& context, const DeleteCommand& command);

struct InfoCommand {};
absl::Status Run(const Context& context, const InfoCommand& command);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_SESSION_COMMANDS_H_
