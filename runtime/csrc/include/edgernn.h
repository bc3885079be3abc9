/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a packed model step by step in plain C, without ONNX Runtime. A step allocates no memory,
 * takes no lock and calls no function of the system.
 *
 *   size_t need;
 *   edgernn_memory(file, bytes, 1, &need);              file: model.edgernn, in memory or mapped
 *   void* memory = aligned_alloc(EDGERNN_ALIGNMENT, need);
 *   EdgernnModel* model;
 *   edgernn_open(file, bytes, 1, memory, need, &model);
 *   edgernn_step(model, x, y);                          x: I numbers, y: O numbers
 *   edgernn_reset(model);                               starts a new sequence
 *
 * Every function returns a status; edgernn_message() describes the last error. No function aborts
 * or prints. The model keeps its state between steps, in `memory`. The caller owns `memory` and the
 * file and keeps both alive as long as it uses the model; nothing has to be closed. Different
 * models may run on different threads. Calls with the same model on two threads at a time are
 * undefined behaviour, as no function takes a lock: lock it, or open a model for each thread. A
 * step advances a batch of B independent sequences.
 */

#ifndef EDGERNN_EDGERNN_H_
#define EDGERNN_EDGERNN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EDGERNN_ALIGNMENT 64

#if defined(_WIN32) && defined(EDGERNN_DLL)
#define EDGERNN_API __declspec(dllexport) /* while a DLL is built */
#elif defined(__GNUC__) && !defined(_WIN32)
#define EDGERNN_API __attribute__((visibility("default")))
#else
#define EDGERNN_API
#endif

typedef struct EdgernnModel EdgernnModel;

typedef enum EdgernnStatus {
  EDGERNN_OK = 0,
  EDGERNN_BAD_ARGUMENT = 1, /* a null pointer, an invalid size, unaligned or insufficient memory */
  EDGERNN_BAD_MODEL = 2,    /* not a packed model, or a truncated, damaged or inconsistent one */
  EDGERNN_BAD_VERSION = 3,  /* a model that was packed for another version of the library */
  EDGERNN_BAD_INPUT = 4,    /* x is not finite, or a word is outside the vocabulary */
  EDGERNN_UNSUPPORTED = 5,  /* an op or a processor that the library was not built for */
  EDGERNN_BAD_STATE = 6     /* a saved state of another model, or a damaged one, or one with NaN */
} EdgernnStatus;

typedef struct EdgernnSizes {
  int64_t batch;      /* B */
  int64_t input;      /* I; 0 for a model of words, the samples of a step for a model of audio */
  int64_t vocabulary; /* number of words; 0 for a model of numbers */
  int64_t output;     /* O */
  int64_t state;      /* floats of state, of all B sequences */
  int64_t neurons;    /* neurons of all layers */
} EdgernnSizes;

/* Actions of edgernn_step on a number of x that is NaN or infinite. */
typedef enum EdgernnNonfinite {
  EDGERNN_NONFINITE_ERROR = 0, /* refuses the step and keeps the state: the default */
  EDGERNN_NONFINITE_HOLD = 1,  /* reads the last finite number of that sequence and channel */
  EDGERNN_NONFINITE_RESET = 2  /* resets the state of that sequence, then reads x as HOLD does */
} EdgernnNonfinite;

/* Describes the last error on this thread: why a call did not return EDGERNN_OK. */
EDGERNN_API const char* edgernn_message(void);

/* Sets *memory to the bytes that edgernn_open needs for B sequences. `data` is aligned to 8 bytes.
 * A file whose model needs more than 16 times its bytes and 1 MiB for one sequence is refused. */
EDGERNN_API EdgernnStatus edgernn_memory(const void* data, size_t bytes, int64_t batch,
                                         size_t* memory);

/* Builds the model of `data` in `memory`, which is aligned to EDGERNN_ALIGNMENT (64) bytes. */
EDGERNN_API EdgernnStatus edgernn_open(const void* data, size_t bytes, int64_t batch, void* memory,
                                       size_t memory_bytes, EdgernnModel** model);

/* Sets *sizes to the sizes of a model. */
EDGERNN_API EdgernnStatus edgernn_sizes(const EdgernnModel* model, EdgernnSizes* sizes);

/* Runs one step: x (B, I) to y (B, O), row-major. An error leaves the state unchanged. */
EDGERNN_API EdgernnStatus edgernn_step(EdgernnModel* model, const float* x, float* y);

/* Runs one step of a model of words: x (B,), each from 0 to vocabulary - 1. */
EDGERNN_API EdgernnStatus edgernn_step_words(EdgernnModel* model, const int64_t* x, float* y);

/* Sets the action of edgernn_step on numbers that are not finite. The numbers to hold are those of
 * later steps; before the first one, the mean that the model subtracts from x, else 0. A NaN that
 * the mask of a model with an imputer marks as missing is always accepted. */
EDGERNN_API EdgernnStatus edgernn_on_nonfinite(EdgernnModel* model, EdgernnNonfinite action);

/* Sets *counts to the number of steps of each sequence, (B,), at which x had a number that is not
 * finite. A reset by the caller sets it to 0. EDGERNN_NONFINITE_ERROR counts nothing. */
EDGERNN_API EdgernnStatus edgernn_nonfinite(const EdgernnModel* model, const int64_t** counts);

/* Sets the state to its initial value, so that the next step starts a new sequence. */
EDGERNN_API EdgernnStatus edgernn_reset(EdgernnModel* model);

/* Sets the state of sequence `row` of the batch, 0 to B - 1, to its initial value. The other
 * sequences keep their state. */
EDGERNN_API EdgernnStatus edgernn_reset_row(EdgernnModel* model, int64_t row);

/* Sets *state to the model's state in memory, EdgernnSizes.state floats. edgernn_save_state saves
 * it with all else that a sequence keeps. */
EDGERNN_API EdgernnStatus edgernn_state(EdgernnModel* model, float** state);

/* Sets *bytes to the size of a saved state of this model and batch. */
EDGERNN_API EdgernnStatus edgernn_state_bytes(const EdgernnModel* model, size_t* bytes);

/* Saves the state of all sequences, with their held numbers and counts, to `data`, which has room
 * for edgernn_state_bytes. A model that is opened from the same file with the same batch, in any
 * process, continues from it bit for bit. A state with NaN is not saved. */
EDGERNN_API EdgernnStatus edgernn_save_state(const EdgernnModel* model, void* data, size_t bytes);

/* Restores a saved state of `bytes` bytes. One of another model, version or batch, a damaged one,
 * one with NaN or an infinite input, and one with a count that no stream reaches are refused, and
 * the model keeps its state. */
EDGERNN_API EdgernnStatus edgernn_restore_state(EdgernnModel* model, const void* data,
                                                size_t bytes);

/* Runs edgernn_step, and adds the nanoseconds that each operation of the model took to
 * `nanoseconds` (count,), in the order of the file. In WebAssembly they are 0. */
EDGERNN_API EdgernnStatus edgernn_profile(EdgernnModel* model, const float* x, float* y,
                                          int64_t* nanoseconds, int64_t count);

/* Counts of the last step, (B,) each: neurons that were updated, or under the rule delta values of
 * h that were sent; and multiply-adds. Both are null if no rule of a layer skips and the file has
 * no If that the graph decides; then *updates is null if the file has no layer. */
EDGERNN_API EdgernnStatus edgernn_work(const EdgernnModel* model, const int64_t** updates,
                                       const int64_t** macs);

/* Sets *rate to the sample rate in Hz of the audio that a model with a front end reads, or to 0 for
 * a model without one and for a file that does not have the rate. */
EDGERNN_API EdgernnStatus edgernn_sample_rate(const EdgernnModel* model, int64_t* rate);

/* Settings of the detection of spoken words, by the rule in examples/c/word_detector.h. */
typedef struct EdgernnDetection {
  double smoothing;  /* seconds over which probabilities are averaged */
  double threshold;  /* least average probability of a detected word */
  double refractory; /* seconds after a detection in which no word is detected */
} EdgernnDetection;

/* Sets *detection to the settings in the file of a model with a front end, or to the defaults 0.3,
 * 0.5 and 0.8 for a file without them. */
EDGERNN_API EdgernnStatus edgernn_detection(const EdgernnModel* model, EdgernnDetection* detection);

/* Sets *name to the name of output `index`, 0 to O - 1, for a model whose outputs are the scores of
 * classes. The UTF-8 text is in the file. *name is null if the file has no names. */
EDGERNN_API EdgernnStatus edgernn_class_name(const EdgernnModel* model, int64_t index,
                                             const char** name);

/* Sets *name to the name of channel `index` of x, 0 to EdgernnSizes.input - 1, as the header of the
 * training's tables has it. The UTF-8 text is in the file. *name is null if the file has no names
 * of channels. */
EDGERNN_API EdgernnStatus edgernn_channel_name(const EdgernnModel* model, int64_t index,
                                               const char** name);

/* Sets *features to the features (B, bands) of the last step, as the first layer reads them, and
 * *bands to their number. Null and 0 for a model without a front end. */
EDGERNN_API EdgernnStatus edgernn_features(const EdgernnModel* model, const float** features,
                                           int64_t* bands);

#ifdef __cplusplus
}
#endif

#endif /* EDGERNN_EDGERNN_H_ */
