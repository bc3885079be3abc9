/* SPDX-License-Identifier: Apache-2.0 */
/* A packed model in memory, and the errors of a program. */

#ifndef EDGERNN_EXAMPLES_PACKED_MODEL_H_
#define EDGERNN_EXAMPLES_PACKED_MODEL_H_

#include <stddef.h>

#include "edgernn.h"

typedef struct PackedModel {
  EdgernnModel* model;
  EdgernnSizes sizes;
  const char* name; /* the path of the file */
  size_t file_bytes;
  size_t memory_bytes;
} PackedModel;

/* The name of the program, which errors begin with. */
extern const char* const program_name;

/* Prints an error and exits. */
void Fail(const char* format, ...);

/* Allocates memory with the alignment that a model needs. */
void* Allocate(size_t bytes);

/* Exits with the message of a function of edgernn.h that did not return EDGERNN_OK. */
void Check(EdgernnStatus status, const char* name);

/* Maps the file of a packed model into memory and opens it for one sequence. */
PackedModel OpenModel(const char* name);

/* The time of a clock that never goes back, in microseconds. */
double Microseconds(void);

#endif /* EDGERNN_EXAMPLES_PACKED_MODEL_H_ */
