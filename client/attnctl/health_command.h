// attnctl health: the probe of containers and scripts.
#ifndef ATTND_CLIENT_ATTNCTL_HEALTH_COMMAND_H_
#define ATTND_CLIENT_ATTNCTL_HEALTH_COMMAND_H_

#include "absl/status/status.h"
#include "client/attnctl/context.h"

namespace attnd::attnctl {

// Asks grpc.health.v1 about the whole server, once and without retries: who probes, probes again.
// Waits for Context.timeout, by default 2 seconds. FAILED_PRECONDITION where the server says that
// it wants no traffic, otherwise the status with which the call failed.
struct HealthCommand {};
absl::Status Run(const Context& context, const HealthCommand& command);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_HEALTH_COMMAND_H_
