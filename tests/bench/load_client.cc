#include "tests/bench/load_client.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>

namespace attnd::bench {
namespace {

using Time = std::chrono::steady_clock::time_point;

void Require(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "a call failed: %s\n", status.error_message().c_str());
  std::exit(EXIT_FAILURE);
}

double SecondsSince(Time start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One call under way.
template <typename Response>
struct Slot {
  std::optional<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
  Response response;
  grpc::Status status;
  Time start;
};

}  // namespace

double Percentile(std::vector<double> seconds, double percent) {
  const auto count = static_cast<double>(seconds.size());
  const auto rank = static_cast<std::ptrdiff_t>((count - 1) * percent / 100);
  std::nth_element(seconds.begin(), seconds.begin() + rank, seconds.end());
  return seconds[static_cast<std::size_t>(rank)];
}

LoadClient::LoadClient(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::AttentionService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

v1::Session LoadClient::Create(const v1::CreateSessionRequest& request) {
  grpc::ClientContext context;
  v1::Session session;
  Require(stub_->CreateSession(&context, request, &session));
  return session;
}

void LoadClient::Delete(const std::string& session_id) {
  grpc::ClientContext context;
  v1::DeleteSessionRequest request;
  v1::DeleteSessionResponse response;
  request.set_session_id(session_id);
  Require(stub_->DeleteSession(&context, request, &response));
}

std::vector<double> LoadClient::Attend(const v1::AttendRequest& request, int concurrency,
                                       int calls) {
  std::vector<Slot<v1::AttendResponse>> slots(static_cast<std::size_t>(concurrency));
  std::vector<double> seconds;
  int started = 0;
  const auto start = [&](Slot<v1::AttendResponse>& slot) {
    if (started == calls) return;
    ++started;
    slot.context.emplace();
    slot.start = std::chrono::steady_clock::now();
    slot.reader = stub_->AsyncAttend(&*slot.context, request, &queue_);
    slot.reader->Finish(&slot.response, &slot.status, &slot);
  };
  for (Slot<v1::AttendResponse>& slot : slots) start(slot);
  while (static_cast<int>(seconds.size()) < started) {
    void* tag = nullptr;
    bool ok = false;
    if (!queue_.Next(&tag, &ok)) std::abort();
    auto& slot = *static_cast<Slot<v1::AttendResponse>*>(tag);
    seconds.push_back(SecondsSince(slot.start));
    Require(slot.status);
    start(slot);
  }
  return seconds;
}

std::vector<double> LoadClient::Append(v1::AppendRequest& request, int calls) {
  std::vector<double> seconds;
  Slot<v1::AppendResponse> slot;
  v1::LayerTokens& tokens = *request.mutable_tokens(0);
  for (int i = 0; i < calls; ++i) {
    slot.context.emplace();
    slot.response.Clear();
    slot.start = std::chrono::steady_clock::now();
    slot.reader = stub_->AsyncAppend(&*slot.context, request, &queue_);
    slot.reader->Finish(&slot.response, &slot.status, &slot);
    void* tag = nullptr;
    bool ok = false;
    if (!queue_.Next(&tag, &ok)) std::abort();
    seconds.push_back(SecondsSince(slot.start));
    Require(slot.status);
    tokens.set_position(slot.response.positions(0).position());
  }
  return seconds;
}

int LoadClient::AttendUntil(const v1::AttendRequest& request, const std::function<bool()>& stop) {
  constexpr std::chrono::milliseconds kLook{10};
  int ended = 0;
  Slot<v1::AttendResponse> slot;
  while (!stop()) {
    slot.context.emplace();
    slot.reader = stub_->AsyncAttend(&*slot.context, request, &queue_);
    slot.reader->Finish(&slot.response, &slot.status, &slot);
    void* tag = nullptr;
    bool ok = false;
    while (queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kLook) !=
           grpc::CompletionQueue::GOT_EVENT) {
      if (stop()) slot.context->TryCancel();
    }
    if (slot.status.error_code() == grpc::StatusCode::CANCELLED) break;
    Require(slot.status);
    ++ended;
  }
  return ended;
}

}  // namespace attnd::bench
