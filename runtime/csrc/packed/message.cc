// SPDX-License-Identifier: Apache-2.0

#include "packed/message.h"

namespace edgernn {
namespace {

thread_local char last_message[512] = "";

}  // namespace

const char* LastMessage() { return last_message; }

Text& Text::Add(const char* words) {
  for (; *words != '\0' && size_ + 1 < sizeof last_message; ++words) {
    last_message[size_++] = *words;
  }
  return *this;
}

Text& Text::Add(std::int64_t number) {
  char digits[24] = "";
  char* at = digits + sizeof digits - 1;
  std::uint64_t rest = static_cast<std::uint64_t>(number);
  if (number < 0) rest = 0 - rest;
  do {
    *--at = static_cast<char>('0' + rest % 10);
    rest /= 10;
  } while (rest > 0);
  if (number < 0) *--at = '-';
  return Add(at);
}

EdgernnStatus Text::Report(EdgernnStatus status) {
  last_message[size_] = '\0';
  return status;
}

EdgernnStatus Report(EdgernnStatus status, const char* message) {
  return Text().Add(message).Report(status);
}

bool IsNull(const void* pointer, const char* name) {
  if (pointer != nullptr) return false;
  Text().Add(name).Add(": expected a pointer, got null").Report(EDGERNN_BAD_ARGUMENT);
  return true;
}

}  // namespace edgernn
