#include "client/error.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attention.pb.h"
#include "tests/client/fake_error.h"

namespace attnd::client {
namespace {

TEST(Error, KeepsCodeMessageReasonMetadataAndRetryDelay) {
  const absl::Status status =
      FromGrpc(FakeError(grpc::StatusCode::OUT_OF_RANGE, "WRONG_POSITION", "position: is 3",
                         {{"layer", "1"}, {"position", "3"}}, 1500));
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(), "position: is 3");
  EXPECT_EQ(ErrorReasonOf(status), "WRONG_POSITION");
  EXPECT_EQ(ErrorMetadataOf(status).at("layer"), "1");
  EXPECT_EQ(ErrorNumberOf(status, "position"), 3);
  EXPECT_EQ(ErrorNumberOf(status, "absent"), std::nullopt);
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(1500));

  const absl::Status renamed = WithMessage(status, "other words");
  EXPECT_EQ(renamed.message(), "other words");
  EXPECT_EQ(ErrorReasonOf(renamed), "WRONG_POSITION");
}

TEST(Error, WithoutDetailsIsEmptyNotInvented) {
  const absl::Status status = FromGrpc({grpc::StatusCode::UNAVAILABLE, "no route"});
  EXPECT_EQ(ErrorReasonOf(status), "");
  EXPECT_TRUE(ErrorMetadataOf(status).empty());
  EXPECT_EQ(RetryDelayOf(status), std::nullopt);
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(Error, GarbageInsteadOfDetailsIsIgnored) {
  const absl::Status status =
      FromGrpc({grpc::StatusCode::ABORTED, "odd", std::string("\xff\xff\xff\x07garbage", 11)});
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReasonOf(status), "");
}

TEST(Error, StatusInsideAStreamMessage) {
  google::rpc::Status rpc;
  EXPECT_TRUE(FromRpc(rpc).ok());
  ASSERT_TRUE(rpc.ParseFromString(
      FakeError(grpc::StatusCode::ABORTED, "STALE_GENERATION", "generation").error_details()));
  EXPECT_EQ(FromRpc(rpc).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReasonOf(FromRpc(rpc)), "STALE_GENERATION");
}

TEST(Error, EveryReasonThatAUserCanActOnHasAdvice) {
  const google::protobuf::EnumDescriptor* reasons = v1::ErrorReason_descriptor();
  for (int i = 0; i < reasons->value_count(); ++i) {
    const std::string& name = reasons->value(i)->name();
    // These say everything in their message, or are nobody's to act on but the server's owner.
    if (name == "ERROR_REASON_UNSPECIFIED" || name == "INVALID_FIELD" || name == "INTERNAL_ERROR") {
      continue;
    }
    const auto code =
        name == "SHUTTING_DOWN" ? grpc::StatusCode::UNAVAILABLE : grpc::StatusCode::ABORTED;
    EXPECT_NE(AdviceFor(FromGrpc(FakeError(code, name, "m"))), "") << name;
  }
}

}  // namespace
}  // namespace attnd::client
