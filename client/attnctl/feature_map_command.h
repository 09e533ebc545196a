// attnctl put-feature-map: uploads a learned feature map from .npy files.
#ifndef ATTND_CLIENT_ATTNCTL_FEATURE_MAP_COMMAND_H_
#define ATTND_CLIENT_ATTNCTL_FEATURE_MAP_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/attnctl/context.h"

namespace attnd::attnctl {

struct PutFeatureMapCommand {
  std::string activation = "hedgehog";
  std::string key_weights;
  std::string query_weights;
  // Empty: none.
  std::string key_bias;
  std::string query_bias;
  // The session that will use it, by which proxies route; empty: none.
  std::string id;
};
absl::Status Run(const Context& context, const PutFeatureMapCommand& command);

// The activations of the contract, as --activation takes them.
std::vector<std::string> ActivationNames();

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_FEATURE_MAP_COMMAND_H_
