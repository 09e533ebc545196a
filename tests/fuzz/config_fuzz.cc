// CreateSessionRequest: a configuration is refused with a reason, or makes a session that can be
// described, compared with itself and deleted, and whose memory was reserved.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "server/error.h"
#include "server/session_config.h"
#include "tests/fuzz/fuzz_server.h"

namespace attnd::server {
namespace {

void Run(FuzzServer& server, const std::uint8_t* data, std::size_t size) {
  v1::CreateSessionRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return;
  const absl::Status id = CheckSessionId(request.session_id());
  Require(id.ok() || ReasonOf(id) == v1::INVALID_FIELD, "an id is refused with a reason");
  auto plan = PlanSession(request.config(), server.options);
  if (!plan.ok()) {
    const v1::ErrorReason reason = ReasonOf(plan.status());
    Require(reason == v1::INVALID_FIELD || reason == v1::UNSUPPORTED ||
                reason == v1::UNKNOWN_FEATURE_MAP,
            "a refusal has a reason");
    Require(plan.status().message().size() < 1000, "a message is short");
    return;
  }
  // What was filled in is a configuration of the same identity.
  auto again = PlanSession(plan->config, server.options);
  Require(again.ok() && again->identity == plan->identity, "defaults written out change nothing");
  const SessionKey key = {Session::kDefaultTenant, "s"};
  auto session = server.sessions.Create(key, *std::move(plan));
  if (!session.ok()) {
    Require(ReasonOf(session.status()) == v1::STATE_BYTES, "only its size keeps it out");
    return;
  }
  Require(server.budget.used() == (*session)->state_bytes(), "its memory is reserved");
  Require((*session)->Describe().position() == 0, "it is empty");
  Require(server.sessions.Delete(key).ok(), "it can be deleted");
  session = absl::UnknownError("");
  Require(server.budget.used() == 0, "its memory is given back");
}

}  // namespace
}  // namespace attnd::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto& server = *new attnd::server::FuzzServer;
  attnd::server::Run(server, data, size);
  return 0;
}
