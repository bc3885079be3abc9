// SPDX-License-Identifier: Apache-2.0
// The message of the last error on this thread, which edgernn_message returns. Nothing here
// allocates memory, as a step does not.

#pragma once

#include <cstddef>
#include <cstdint>

#include "edgernn.h"

namespace edgernn {

const char* LastMessage();

// Writes the message.
class Text {
 public:
  Text& Add(const char* words);
  Text& Add(std::int64_t number);

  // Ends the message, and returns `status`.
  EdgernnStatus Report(EdgernnStatus status);

 private:
  std::size_t size_ = 0;
};

// Stores the message and returns `status`.
EdgernnStatus Report(EdgernnStatus status, const char* message);

// Returns true, and stores a message, if the pointer is null.
bool IsNull(const void* pointer, const char* name);

}  // namespace edgernn
