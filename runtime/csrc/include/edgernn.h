/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a packed model step by step, without ONNX Runtime: plain C. A step allocates nothing.
 *
 *   size_t need;
 *   edgernn_memory(file, bytes, 1, &need);              file: model.edgernn, in memory or mapped
 *   void* memory = aligned_alloc(EDGERNN_ALIGNMENT, need);
 *   EdgernnModel* model;
 *   edgernn_open(file, bytes, 1, memory, need, &model);
 *   edgernn_step(model, x, y);                          x: I numbers, y: O; the state is kept
 *   edgernn_reset(model);                               forgets the state
 *
 * Every function returns a status, and edgernn_message() says what was wrong. None of them aborts,
 * prints or keeps anything but what is in `memory`, which is the caller's, as the file is; both
 * must stay until the model is no longer used, and nothing has to be closed. Different models may
 * be used on different threads, one model on one thread at a time. B sequences are stepped side by
 * side.
 */

#ifndef EDGERNN_EDGERNN_H_
#define EDGERNN_EDGERNN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EDGERNN_ALIGNMENT 64

#if defined(__GNUC__)
#define EDGERNN_API __attribute__((visibility("default")))
#else
#define EDGERNN_API
#endif

typedef struct EdgernnModel EdgernnModel;

typedef enum EdgernnStatus {
  EDGERNN_OK = 0,
  EDGERNN_BAD_ARGUMENT = 1, /* a null pointer, a size, memory that is unaligned or too little */
  EDGERNN_BAD_MODEL = 2,    /* no packed model, one cut short, or one whose parts do not agree */
  EDGERNN_BAD_VERSION = 3,  /* a packed model for another version of the library */
  EDGERNN_BAD_INPUT = 4,    /* x is not finite, or names a word that there is not */
  EDGERNN_UNSUPPORTED = 5   /* an op or a processor that the library was not built for */
} EdgernnStatus;

typedef struct EdgernnSizes {
  int64_t batch;      /* B */
  int64_t input;      /* I; 0 where x is words */
  int64_t vocabulary; /* so many words there are; 0 where x is numbers */
  int64_t output;     /* O */
  int64_t state;      /* numbers of state, of all B sequences */
  int64_t neurons;    /* of all layers */
} EdgernnSizes;

/* Why the last call on this thread did not return EDGERNN_OK, as a sentence. */
EDGERNN_API const char* edgernn_message(void);

/* The bytes of memory that edgernn_open needs for B sequences. `data` starts at a multiple of 8. */
EDGERNN_API EdgernnStatus edgernn_memory(const void* data, size_t bytes, int64_t batch,
                                         size_t* memory);

/* Makes a model of `data` in `memory`, which starts at a multiple of EDGERNN_ALIGNMENT. */
EDGERNN_API EdgernnStatus edgernn_open(const void* data, size_t bytes, int64_t batch, void* memory,
                                       size_t memory_bytes, EdgernnModel** model);

EDGERNN_API EdgernnStatus edgernn_sizes(const EdgernnModel* model, EdgernnSizes* sizes);

/* One step: x (B, I) to y (B, O), row-major. If x is refused, the state is as it was. */
EDGERNN_API EdgernnStatus edgernn_step(EdgernnModel* model, const float* x, float* y);

/* The same for a model of words, each below the vocabulary: x (B,). */
EDGERNN_API EdgernnStatus edgernn_step_words(EdgernnModel* model, const int64_t* x, float* y);

/* The next step starts a new sequence. */
EDGERNN_API EdgernnStatus edgernn_reset(EdgernnModel* model);

/* The state, to be kept or put back: EdgernnSizes.state floats. */
EDGERNN_API EdgernnStatus edgernn_state(EdgernnModel* model, float** state);

/* Of the last step, (B,) each: how many neurons changed, and the multiply-adds of all layers. Null
 * where every neuron changes at every step. */
EDGERNN_API EdgernnStatus edgernn_work(const EdgernnModel* model, const int64_t** updates,
                                       const int64_t** macs);

#ifdef __cplusplus
}
#endif

#endif /* EDGERNN_EDGERNN_H_ */
