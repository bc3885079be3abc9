/* SPDX-License-Identifier: Apache-2.0 */
/* Streams sequences through a packed model of edgernn, without ONNX Runtime:
 *
 *   stream model.edgernn < x.csv > y.csv
 *
 * Each line of I numbers, which may be in quotes, is a step, for which the program prints a line
 * with the model's output. An empty line ends a sequence. A first line without any number is a
 * header: if the model knows the names of its channels, the columns are read in their order, by
 * name. At the end, the program prints the time per step, over the last 100,000 steps, and the
 * memory of the model on standard error.
 */

#define _POSIX_C_SOURCE 200809L /* for getline */

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "edgernn.h"
#include "packed_model.h"

static const char byte_order_mark[] = "\xef\xbb\xbf";

const char* const program_name = "stream";

/* An open model and its buffers. */
typedef struct Stream {
  PackedModel packed;
  float* x;       /* (I,), or null for a model of words */
  int64_t* place; /* (I,): the channel of each column */
  int64_t word;   /* the input of a model of words */
  float* y;       /* (O,) */
} Stream;

/* Number of steps whose times are kept. */
enum { kKept = 100000 };

/* The measured times of the last steps. */
typedef struct Times {
  double microseconds[kKept]; /* a ring buffer: step t is at t % kKept */
  size_t count;               /* number of all steps */
} Times;

static Stream Open(const char* name) {
  Stream stream = {OpenModel(name), NULL, NULL, 0, NULL};
  const EdgernnSizes* const sizes = &stream.packed.sizes;
  if (sizes->vocabulary == 0) {
    stream.x = Allocate((size_t)sizes->input * sizeof(float));
    stream.place = Allocate((size_t)sizes->input * sizeof(int64_t));
  }
  for (int64_t i = 0; stream.place != NULL && i < sizes->input; ++i) stream.place[i] = i;
  stream.y = Allocate((size_t)sizes->output * sizeof(float));
  return stream;
}

/* A cell of a line, without quotes and spaces around it. */
typedef struct Cell {
  const char* text;
  size_t size;
} Cell;

static int IsBlank(const char* line) { return line[strspn(line, " \r\n")] == '\0'; }

/* Takes the next cell of a line and moves `at` behind it. Returns 0 after the last cell. */
static int NextCell(const char** at, Cell* cell) {
  if (*at == NULL) return 0;
  const char* begin = *at + strspn(*at, " \t");
  const char* end = begin + strcspn(begin, ",\r\n");
  *cell = (Cell){begin, (size_t)(end - begin)};
  if (*begin == '"') {
    const char* const quote = begin + 1 + strcspn(begin + 1, "\"\r\n");
    const char* const after = quote + (*quote == '"') + strspn(quote + (*quote == '"'), " \t");
    /* other text after the quotes stays in the cell, which is then no number */
    if (*quote == '"' && strchr(",\r\n", *after) != NULL) {
      *cell = (Cell){begin + 1, (size_t)(quote - begin) - 1};
      end = after;
    }
  }
  while (cell->size > 0 && strchr(" \t", cell->text[cell->size - 1]) != NULL) --cell->size;
  *at = *end == ',' ? end + 1 : NULL;
  return 1;
}

/* Reads a number, also nan and inf, but not the hexadecimal ones of C. Returns 0 if the cell has
 * anything else. */
static int ParseNumber(Cell cell, float* number) {
  char* end = NULL;
  *number = strtof(cell.text, &end);
  const int is_hex =
      memchr(cell.text, 'x', cell.size) != NULL || memchr(cell.text, 'X', cell.size) != NULL;
  return cell.size > 0 && end == cell.text + cell.size && !is_hex &&
         memchr(cell.text, '(', cell.size) == NULL;
}

/* Returns 1 if a cell has digits and no letters, such as one with another minus sign or with #. */
static int IsDamaged(Cell cell) {
  int digits = 0;
  for (size_t i = 0; i < cell.size; ++i) {
    if (isalpha((unsigned char)cell.text[i])) return 0;
    digits |= isdigit((unsigned char)cell.text[i]);
  }
  return digits;
}

/* Returns 1 if a line has a cell that is not empty, and no cell that is or was a number. */
static int IsHeader(const char* line) {
  int has_text = 0;
  float number;
  for (Cell cell; NextCell(&line, &cell);) {
    if (ParseNumber(cell, &number) || IsDamaged(cell)) return 0;
    has_text |= cell.size > 0;
  }
  return has_text;
}

static const char* ChannelName(const Stream* stream, int64_t channel) {
  const char* name = NULL;
  Check(edgernn_channel_name(stream->packed.model, channel, &name), stream->packed.name);
  return name;
}

/* Fails because a header has other columns than the training. */
static void FailColumns(const Stream* stream, const char* line) {
  fprintf(stderr, "%s: line 1: expected the columns ", program_name);
  for (int64_t i = 0; i < stream->packed.sizes.input; ++i) {
    fprintf(stderr, "%s%s", i == 0 ? "" : ",", ChannelName(stream, i));
  }
  fprintf(stderr, " of the training, got %.*s; correct the header\n", (int)strcspn(line, "\r\n"),
          line);
  exit(1);
}

/* Fails unless a header has a name for each of `count` columns. */
static void CheckColumns(const char* line, int64_t count) {
  const char* at = line;
  int64_t columns = 0;
  for (Cell cell; NextCell(&at, &cell);) ++columns;
  if (columns == count) return;
  fprintf(stderr,
          "%s: line 1: expected a header of %" PRId64 " columns, got %.*s; correct the header\n",
          program_name, count, (int)strcspn(line, "\r\n"), line);
  exit(1);
}

/* Finds the channel of each column by its name in the header, if the model knows the names. */
static void ReadHeader(Stream* stream, const char* line) {
  const int64_t count = stream->packed.sizes.input;
  if (stream->place == NULL) return;
  if (ChannelName(stream, 0) == NULL) {
    CheckColumns(line, count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) stream->place[i] = -1;
  const char* at = line;
  int64_t columns = 0;
  for (Cell cell; NextCell(&at, &cell); ++columns) {
    /* numpy.savetxt marks a header with # */
    while (columns == 0 && cell.size > 0 && (*cell.text == '#' || *cell.text == ' ')) {
      cell = (Cell){cell.text + 1, cell.size - 1};
    }
    int64_t channel = count, matches = 0;
    for (int64_t i = 0; i < count; ++i) {
      const char* const name = ChannelName(stream, i);
      if (strlen(name) != cell.size || memcmp(name, cell.text, cell.size) != 0) continue;
      channel = i;
      ++matches;
    }
    int64_t earlier = 0;
    for (int64_t i = 0; i < columns && i < count; ++i) earlier |= stream->place[i] == channel;
    if (matches != 1 || earlier || columns >= count) FailColumns(stream, line);
    stream->place[columns] = channel;
  }
  if (columns != count) FailColumns(stream, line);
}

/* Reads `count` finite numbers separated by commas, that of column i to numbers[place[i]]. `number`
 * is that of the line. */
static void ParseNumbers(const char* line, size_t number, int64_t count, const int64_t* place,
                         float* numbers) {
  const char* at = line;
  int64_t columns = 0, bad = -1;
  Cell bad_cell = {line, 0};
  float value;
  for (Cell cell; NextCell(&at, &cell); ++columns) {
    const int is_number = ParseNumber(cell, &value) && isfinite(value);
    if (columns < count) numbers[place[columns]] = value;
    if (bad < 0 && !is_number) {
      bad = columns;
      bad_cell = cell;
    }
  }
  if (columns != count) {
    Fail("line %zu: expected %lld finite numbers, got %.*s", number, (long long)count,
         (int)strcspn(line, "\r\n"), line);
  }
  if (bad >= 0) {
    Fail("line %zu, column %lld: expected a finite number, got '%.*s'", number, (long long)bad + 1,
         (int)bad_cell.size, bad_cell.text);
  }
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
  if (!words) {
    ParseNumbers(line, number, stream->packed.sizes.input, stream->place, stream->x);
  } else if (!ParseWord(line, &stream->word)) {
    Fail("line %zu: expected 1 word, got %.*s", number, (int)strcspn(line, "\r\n"), line);
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
    const char* text = line;
    if (number == 1 && strncmp(line, byte_order_mark, 3) == 0) text += 3;
    if (IsBlank(text)) {
      edgernn_reset(stream.packed.model);
    } else if (number == 1 && IsHeader(text)) {
      ReadHeader(&stream, text);
    } else {
      Step(&stream, text, number, &times);
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
