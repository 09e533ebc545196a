#include "tests/e2e/raw_call.h"

#include <vector>

#include "grpcpp/generic/generic_stub.h"

namespace attnd::e2e {

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToBytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

Reply<std::string> RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& request, int seconds) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const auto context = Context(seconds);
  const auto call = stub.PrepareUnaryCall(context.get(), method, ToBuffer(request), &queue);
  call->StartCall();
  Reply<std::string> reply;
  grpc::ByteBuffer response;
  call->Finish(&response, &reply.status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (reply.status.ok()) reply.value = ToBytes(response);
  return reply;
}

}  // namespace attnd::e2e
