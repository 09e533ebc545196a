// Unary calls whose messages are bytes, for messages that no generated class would write and for
// services whose classes are not at hand.
#ifndef ATTND_TESTS_E2E_RAW_CALL_H_
#define ATTND_TESTS_E2E_RAW_CALL_H_

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {

grpc::ByteBuffer ToBuffer(const std::string& bytes);
std::string ToBytes(const grpc::ByteBuffer& buffer);

// Calls `method`, such as "/attnd.v1.AttentionService/Append". Fails after `seconds`.
Reply<std::string> RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& request, int seconds = 30);

}  // namespace attnd::e2e

#endif  // ATTND_TESTS_E2E_RAW_CALL_H_
