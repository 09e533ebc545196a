// What of a learned feature map's header its SHA-256 covers: the one encoding of the contract
// (FeatureMapHeader) that its messages do not carry, for whoever names a map or checks the name.
//
// Pure; any thread. Fails in nothing but memory: std::bad_alloc.
#ifndef ATTND_PROTO_FEATURE_MAP_ENCODING_H_
#define ATTND_PROTO_FEATURE_MAP_ENCODING_H_

#include <string>

#include "attnd/v1/attention.pb.h"

namespace attnd::contract {

// The 32 bytes that come before the payload in the bytes whose SHA-256 names a map. Reads neither
// payload_bytes, which follows from the sizes, nor sha256; checks nothing.
std::string EncodeFeatureMapHeader(const v1::FeatureMapHeader& header);

}  // namespace attnd::contract

#endif  // ATTND_PROTO_FEATURE_MAP_ENCODING_H_
