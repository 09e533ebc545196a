#include "server/config_hash.h"

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/digest.h"

namespace attnd::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void AddNumber(std::uint64_t value, std::string& bytes) {
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

void AddBytes(const std::string& value, std::string& bytes) {
  AddNumber(value.size(), bytes);
  bytes += value;
}

std::string Encode(const Message& message);

// The value at `index` of a repeated field; of another field its one value, with index -1.
void AddValue(const Message& message, const FieldDescriptor& field, int index, std::string& bytes) {
  const Reflection& of = *message.GetReflection();
  const bool many = index >= 0;
  const FieldDescriptor* f = &field;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      AddNumber(static_cast<std::uint64_t>(std::int64_t{
                    many ? of.GetRepeatedInt32(message, f, index) : of.GetInt32(message, f)}),
                bytes);
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      AddNumber(static_cast<std::uint64_t>(many ? of.GetRepeatedInt64(message, f, index)
                                                : of.GetInt64(message, f)),
                bytes);
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      AddNumber(many ? of.GetRepeatedUInt32(message, f, index) : of.GetUInt32(message, f), bytes);
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      AddNumber(many ? of.GetRepeatedUInt64(message, f, index) : of.GetUInt64(message, f), bytes);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      AddNumber(std::bit_cast<std::uint64_t>(many ? of.GetRepeatedDouble(message, f, index)
                                                  : of.GetDouble(message, f)),
                bytes);
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      AddNumber(std::bit_cast<std::uint64_t>(static_cast<double>(
                    many ? of.GetRepeatedFloat(message, f, index) : of.GetFloat(message, f))),
                bytes);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      AddNumber((many ? of.GetRepeatedBool(message, f, index) : of.GetBool(message, f)) ? 1 : 0,
                bytes);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      AddNumber(
          static_cast<std::uint64_t>(std::int64_t{many ? of.GetRepeatedEnumValue(message, f, index)
                                                       : of.GetEnumValue(message, f)}),
          bytes);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      AddBytes(many ? of.GetRepeatedString(message, f, index) : of.GetString(message, f), bytes);
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      AddBytes(Encode(many ? of.GetRepeatedMessage(message, f, index) : of.GetMessage(message, f)),
               bytes);
      break;
  }
}

std::string Encode(const Message& message) {
  std::string bytes;
  const Reflection& of = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;  // ascending
  of.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    AddNumber(static_cast<std::uint64_t>(field->number()), bytes);
    if (!field->is_repeated()) {
      AddNumber(1, bytes);
      AddValue(message, *field, -1, bytes);
      continue;
    }
    const int count = of.FieldSize(message, field);
    AddNumber(static_cast<std::uint64_t>(count), bytes);
    for (int i = 0; i < count; ++i) AddValue(message, *field, i, bytes);
  }
  return bytes;
}

}  // namespace

ConfigHash HashOfConfig(const v1::SessionConfig& config) {
  v1::SessionConfig fixed = config;
  fixed.clear_time_to_live();
  fixed.clear_labels();
  const std::string bytes = Encode(fixed);
  engine::Digester digester;
  digester.Update(bytes.data(), static_cast<std::int64_t>(bytes.size()));
  const engine::Digest digest = digester.Result();
  ConfigHash hash;
  for (std::size_t i = 0; i < 8; ++i) {
    hash[i] = static_cast<std::uint8_t>(digest.high >> (56 - 8 * i));
    hash[8 + i] = static_cast<std::uint8_t>(digest.low >> (56 - 8 * i));
  }
  return hash;
}

}  // namespace attnd::server
