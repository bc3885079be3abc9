/* SPDX-License-Identifier: Apache-2.0 */
/* Detects speech in a recording, or in audio as it comes, with a packed model:
 *
 *   vad [-n NEW] [-t THRESHOLD] [-r RATE] model.edgernn FILE.wav
 *   arecord -f S16_LE -r 16000 | vad model.edgernn -
 *
 * The model has one output, the probability of speech, or scores of classes of which one is
 * _silence_. NEW is the number of new samples in a step, by default all that the model reads; each
 * step begins with the last samples of the step before if the model reads more of them, such as
 * silero-vad, which reads 576 of which 512 are new.
 *
 * Speech begins when its probability reaches the threshold, and ends when it stays 0.15 below for a
 * quarter of a second. The program prints each part with speech, and then the share of real time
 * that the steps took.
 */

#define _POSIX_C_SOURCE 200809L /* for getopt and sigaction */

#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "audio.h"
#include "edgernn.h"
#include "packed_model.h"

const char* const program_name = "vad";

static const double kBelow = 0.15, kPause = 0.25;

static volatile sig_atomic_t is_interrupted = 0;

static void Interrupt(int number) {
  (void)number;
  is_interrupted = 1;
}

/* What a program of the command line may set; 0 stands for the model's own. */
typedef struct Settings {
  int64_t added; /* new samples of a step */
  int64_t rate;  /* samples per second */
  double threshold;
} Settings;

/* Returns the class _silence_, or -1 for a model with one output. */
static int64_t FindSilence(const PackedModel* packed) {
  for (int64_t k = 0; k < packed->sizes.output; ++k) {
    const char* name = NULL;
    Check(edgernn_class_name(packed->model, k, &name), packed->name);
    if (name != NULL && strcmp(name, "_silence_") == 0) return k;
  }
  if (packed->sizes.output != 1) {
    Fail(
        "%s: expected one output or a class _silence_, got %lld outputs; train it with task "
        "keywords",
        packed->name, (long long)packed->sizes.output);
  }
  return -1;
}

/* The probability of speech. */
static double Speech(const float* y, int64_t outputs, int64_t silence) {
  if (silence < 0) return y[0];
  double sum = 0;
  for (int64_t k = 0; k < outputs; ++k) sum += exp((double)y[k] - (double)y[silence]);
  return 1 - 1 / sum;
}

static void Run(const PackedModel* packed, const char* source, Settings settings) {
  const size_t size = (size_t)packed->sizes.input, added = (size_t)settings.added;
  const int64_t silence = FindSilence(packed);
  float* const x = Allocate(size * sizeof *x);
  float* const y = Allocate((size_t)packed->sizes.output * sizeof *y);
  memset(x, 0, size * sizeof *x);
  Audio audio = OpenAudio(source, settings.rate);
  const double step = (double)added / (double)settings.rate;
  double begin = -1, last = 0, speech = 0, took = 0;
  int64_t steps = 0, parts = 0;
  while (!is_interrupted && ReadSamples(&audio, x + size - added, added) == added) {
    const double start = Microseconds();
    Check(edgernn_step(packed->model, x, y), packed->name);
    took += Microseconds() - start;
    memmove(x, x + added, (size - added) * sizeof *x);
    const double now = (double)steps++ * step,
                 probability = Speech(y, packed->sizes.output, silence);
    if (probability >= settings.threshold && begin < 0) begin = now;
    if (probability >= settings.threshold - kBelow) last = now + step;
    if (begin < 0 || now + step - last < kPause) continue;
    printf("%9.2f s to %.2f s\n", begin, last);
    fflush(stdout);
    speech += last - begin;
    begin = -1;
    ++parts;
  }
  const double seconds = (double)steps * step;
  if (steps == 0)
    Fail("%s: expected at least %zu samples, one step; record more", audio.name, added);
  if (begin >= 0) {
    printf("%9.2f s to %.2f s\n", begin, last);
    speech += last - begin;
    ++parts;
  }
  printf("%s: %.1f s of speech in %lld parts of %.1f s\n", audio.name, speech, (long long)parts,
         seconds);
  fprintf(stderr, "%.1f us of steps per second of audio: %.3f %% of real time\n", took / seconds,
          took / seconds * 1e-4);
}

static double ParseNumber(const char* text, int option, double most) {
  char* end = NULL;
  const double number = strtod(text, &end);
  if (end == text || *end != '\0' || !(number > 0 && number <= most)) {
    Fail("-%c: expected a number above 0 and at most %g, got %s", option, most, text);
  }
  return number;
}

int main(int argc, char** argv) {
  Settings settings = {0, 0, 0.5};
  int option;
  while ((option = getopt(argc, argv, "n:t:r:")) != -1) {
    if (option == 'n') settings.added = (int64_t)ParseNumber(optarg, option, 1e6);
    if (option == 't') settings.threshold = ParseNumber(optarg, option, 1);
    if (option == 'r') settings.rate = (int64_t)ParseNumber(optarg, option, 1e6);
    if (option == '?') return 2;
  }
  if (argc - optind != 2) {
    fprintf(stderr,
            "usage: vad [-n NEW] [-t THRESHOLD] [-r RATE] model.edgernn FILE.wav\n"
            "       arecord -f S16_LE -r 16000 | vad model.edgernn -\n");
    return 2;
  }
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = Interrupt;
  /* the first Ctrl-C ends a waiting read, and the second one the program */
  action.sa_flags = (int)SA_RESETHAND;
  sigaction(SIGINT, &action, NULL);
  const PackedModel packed = OpenModel(argv[optind]);
  if (packed.sizes.input == 0)
    Fail("%s: expected a model that reads audio, got one of words", packed.name);
  if (settings.rate == 0) Check(edgernn_sample_rate(packed.model, &settings.rate), packed.name);
  /* a file of another tool does not say its rate */
  if (settings.rate == 0) settings.rate = 16000;
  if (settings.added == 0) settings.added = packed.sizes.input;
  if (settings.added > packed.sizes.input) {
    Fail("-n: expected at most %lld samples, which the model reads, got %lld",
         (long long)packed.sizes.input, (long long)settings.added);
  }
  Run(&packed, argv[optind + 1], settings);
  return 0;
}
