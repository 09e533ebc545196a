// Facts in words, for people. Pure functions.
#ifndef ATTND_CLIENT_ATTNCTL_TEXT_H_
#define ATTND_CLIENT_ATTNCTL_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"

namespace attnd::attnctl {

// "1.5 MiB", "312 B".
std::string Bytes(std::int64_t bytes);

// The smallest position of a session's layers; the others too where they differ: "15", "15 (by
// layer: 20, 15)".
std::string Positions(const std::vector<std::int64_t>& by_layer);

// "exact, 8 heads, d_k 64, d_v 64"; with layers and query heads where they differ from the plain
// case.
std::string Describe(const v1::LayerGroup& group);

// Several lines.
std::string Describe(const v1::Session& session);
std::string Describe(const v1::ServerInfo& info);

// One line of `attnctl list`, and its heading.
std::string ListHeading();
std::string ListLine(const v1::Session& session);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_TEXT_H_
