/* SPDX-License-Identifier: Apache-2.0 */
/* Streams sequences through a packed model of edgernn, without ONNX Runtime:
 *
 *   stream model.edgernn < x.csv > y.csv
 *
 * Each line of I numbers is a step, for which the program prints a line with the model's output. An
 * empty line ends a sequence. The first line is a header if it does not start with a number. At the
 * end, the program prints the time per step, over the last 100,000 steps, and the memory of the
 * model on standard error.
 */

#define _POSIX_C_SOURCE 200809L /* for getline */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "edgernn.h"
#include "packed_model.h"

const char* const program_name = "stream";

/* An open model and its buffers. */
typedef struct Stream {
  PackedModel packed;
  float* x;     /* (I,), or null for a model of words */
  int64_t word; /* the input of a model of words */
  float* y;     /* (O,) */
} Stream;

/* Number of steps whose times are kept. */
enum { kKept = 100000 };

/* The measured times of the last steps. */
typedef struct Times {
  double microseconds[kKept]; /* a ring buffer: step t is at t % kKept */
  size_t count;               /* number of all steps */
} Times;

static Stream Open(const char* name) {
  Stream stream = {OpenModel(name), NULL, 0, NULL};
  const EdgernnSizes* const sizes = &stream.packed.sizes;
  if (sizes->vocabulary == 0) stream.x = Allocate((size_t)sizes->input * sizeof(float));
  stream.y = Allocate((size_t)sizes->output * sizeof(float));
  return stream;
}

static int IsBlank(const char* line) { return line[strspn(line, " \r\n")] == '\0'; }

/* Returns 1 unless the first field is a number; a field such as `nanoseconds` only begins as one.
 */
static int IsHeader(const char* line) {
  char* end = NULL;
  strtof(line, &end);
  return end == line || strchr(", \r\n", *end) == NULL;
}

/* Reads `count` finite numbers separated by commas. Returns 0 if the line has anything else. */
static int ParseNumbers(const char* at, int64_t count, float* numbers) {
  for (int64_t i = 0; i < count; ++i) {
    char* end = NULL;
    numbers[i] = strtof(at, &end);
    if (end == at || !isfinite(numbers[i])) return 0;
    end += strspn(end, " \r\n");
    if (*end != (i + 1 < count ? ',' : '\0')) return 0;
    at = end + 1;
  }
  return 1;
}

static int ParseWord(const char* line, int64_t* word) {
  char* end = NULL;
  *word = strtoll(line, &end, 10);
  return end != line && IsBlank(end);
}

static void Append(Times* times, double microseconds) {
  times->microseconds[times->count++ % kKept] = microseconds;
}

static void Step(Stream* stream, const char* line, size_t number, Times* times) {
  const int words = stream->packed.sizes.vocabulary > 0;
  const int64_t count = words ? 1 : stream->packed.sizes.input;
  if (!(words ? ParseWord(line, &stream->word) : ParseNumbers(line, count, stream->x))) {
    Fail("line %zu: expected %lld %s, got %.*s", number, (long long)count,
         words ? "word" : "finite numbers", (int)strcspn(line, "\r\n"), line);
  }
  const double start = Microseconds();
  const EdgernnStatus status =
      words ? edgernn_step_words(stream->packed.model, &stream->word, stream->y)
            : edgernn_step(stream->packed.model, stream->x, stream->y);
  const double end = Microseconds();
  if (status != EDGERNN_OK) Fail("line %zu: %s", number, edgernn_message());
  Append(times, end - start);
  for (int64_t i = 0; i < stream->packed.sizes.output; ++i) {
    printf("%s%.9g", i == 0 ? "" : ",", (double)stream->y[i]);
  }
  printf("\n");
  /* a reader gets each y before it sends the next x */
  fflush(stdout);
}

static int Compare(const void* a, const void* b) {
  const double difference = *(const double*)a - *(const double*)b;
  return (difference > 0) - (difference < 0);
}

/* updates: Total number of updates (edgernn_work), or -1 for a model that always updates all. */
static void Summarise(const Stream* stream, Times* times, int64_t updates) {
  const size_t count = times->count, kept = count < kKept ? count : kKept;
  if (count == 0) return;
  qsort(times->microseconds, kept, sizeof(double), Compare);
  fprintf(stderr, "%zu steps: median %.2f us per step, 90th percentile %.2f us", count,
          times->microseconds[kept / 2], times->microseconds[kept * 9 / 10]);
  if (updates >= 0) {
    fprintf(stderr, ", %.1f updates per step", (double)updates / (double)count);
  }
  fprintf(stderr, "\n%s: %zu bytes, %zu bytes of memory\n", stream->packed.name,
          stream->packed.file_bytes, stream->packed.memory_bytes);
}

static void Run(const char* name) {
  Stream stream = Open(name);
  static Times times;
  const int64_t *updates = NULL, *macs = NULL;
  Check(edgernn_work(stream.packed.model, &updates, &macs), name);
  int64_t sum = updates == NULL ? -1 : 0;
  char* line = NULL;
  size_t capacity = 0, number = 0;
  while (getline(&line, &capacity, stdin) >= 0) {
    ++number;
    if (IsBlank(line)) {
      edgernn_reset(stream.packed.model);
    } else if (number > 1 || !IsHeader(line)) {
      Step(&stream, line, number, &times);
      if (updates != NULL) sum += *updates;
    }
  }
  Summarise(&stream, &times, sum);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: stream model.edgernn < x.csv > y.csv\n");
    return 2;
  }
  Run(argv[1]);
  return 0;
}
