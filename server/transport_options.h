// How the options become settings of gRPC's transport.
#ifndef ATTND_SERVER_TRANSPORT_OPTIONS_H_
#define ATTND_SERVER_TRANSPORT_OPTIONS_H_

#include "grpcpp/grpcpp.h"
#include "server/options.h"

namespace attnd::server {

// Message sizes, metadata, keepalive, connection age and the quota of gRPC's own buffers.
void AddTransportOptions(const Options& options, grpc::ServerBuilder& builder);

}  // namespace attnd::server

#endif  // ATTND_SERVER_TRANSPORT_OPTIONS_H_
