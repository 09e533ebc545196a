// Times of the contract's messages and of Abseil. Pure functions.
#ifndef ATTND_SERVER_PROTO_TIME_H_
#define ATTND_SERVER_PROTO_TIME_H_

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace attnd::server {

google::protobuf::Duration ToProto(absl::Duration duration);
google::protobuf::Timestamp ToProto(absl::Time time);
absl::Duration FromProto(const google::protobuf::Duration& duration);
absl::Time FromProto(const google::protobuf::Timestamp& time);

}  // namespace attnd::server

#endif  // ATTND_SERVER_PROTO_TIME_H_
