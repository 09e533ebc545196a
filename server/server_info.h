// What the server says about itself: version, numerics, instruction set, limits.
#ifndef ATTND_SERVER_SERVER_INFO_H_
#define ATTND_SERVER_SERVER_INFO_H_

#include "attnd/v1/attention.pb.h"
#include "server/metrics.h"
#include "server/options.h"

namespace attnd::server {

// Raised whenever the bits of an answer may change for the same tokens.
inline constexpr int kNumericsVersion = 1;

BuildInfo MakeBuildInfo();
v1::ServerInfo MakeServerInfo(const Options& options);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVER_INFO_H_
