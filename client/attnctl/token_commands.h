// attnctl append, attend and step: tokens and queries from .npy files, outputs to .npy files.
#ifndef ATTND_CLIENT_ATTNCTL_TOKEN_COMMANDS_H_
#define ATTND_CLIENT_ATTNCTL_TOKEN_COMMANDS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/attnctl/context.h"
#include "client/attnctl/estimates.h"

namespace attnd::attnctl {

// Files of the gates that a layer's update rule takes; empty: none.
struct GateFiles {
  std::string log_decays;
  std::string rates;
};

struct AppendCommand {
  std::string id;
  std::int64_t layer = 0;
  std::string keys;
  std::string values;
  // Empty: no mask.
  std::string mask;
  GateFiles gates;
  // Where the tokens go; absent: at the end.
  std::optional<std::int64_t> position;
};
absl::Status Run(const Context& context, const AppendCommand& command);

struct AttendCommand {
  std::string id;
  std::int64_t layer = 0;
  std::string queries;
  std::string out;
  std::string dtype = "f32";
  std::int64_t min_position = 0;
  std::optional<std::int64_t> query_position;  // of the first query; the others follow it
  bool wait = false;
  // Contributing positions to print per query and head.
  std::int32_t top_k = 0;
  EstimateFlags estimates;
};
absl::Status Run(const Context& context, const AttendCommand& command);

struct StepCommand {
  std::string id;
  std::int64_t layer = 0;
  std::string keys;
  std::string values;
  std::string queries;
  std::string mask;
  GateFiles gates;
  // As in AppendCommand.
  std::optional<std::int64_t> position;
  std::string out;
  std::string dtype = "f32";
  EstimateFlags estimates;
};
absl::Status Run(const Context& context, const StepCommand& command);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_TOKEN_COMMANDS_H_
