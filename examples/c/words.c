/* SPDX-License-Identifier: Apache-2.0 */
/* Detects spoken words in a recording, or in audio as it comes, with a packed model:
 *
 *   words [-t THRESHOLD] [-s SMOOTHING] [-r REFRACTORY] model.edgernn FILE.wav
 *   arecord -f S16_LE -r 16000 | words model.edgernn -
 *
 * Without options, smoothing, threshold and refractory time are those in the file. Each word is
 * printed when it is detected, with its time in seconds and its probability. Words and
 * times are those of `edgernn run MODEL --stream FILE.wav`. At the end, or at Ctrl-C, the program
 * prints the updates that were skipped and the time that the steps took.
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
#include "word_detector.h"

const char* const program_name = "words";

static volatile sig_atomic_t is_interrupted = 0;

static void Interrupt(int number) {
  (void)number;
  is_interrupted = 1;
}

/* Lets the first Ctrl-C end a waiting read, and the second one the program. */
static void HandleInterrupt(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = Interrupt;
  action.sa_flags = (int)SA_RESETHAND;
  sigaction(SIGINT, &action, NULL);
}

/* A model that reads audio. */
typedef struct Listener {
  PackedModel packed;
  int64_t rate;       /* samples per second */
  const char** names; /* of its classes */
  EdgernnDetection detection;
  float* x; /* (hop,): the samples of a step */
  float* y; /* the scores of the classes */
} Listener;

static Listener OpenListener(const char* name) {
  Listener listener;
  memset(&listener, 0, sizeof listener);
  listener.packed = OpenModel(name);
  const EdgernnModel* const model = listener.packed.model;
  const EdgernnSizes sizes = listener.packed.sizes;
  const float* features = NULL;
  int64_t bands = 0;
  Check(edgernn_features(model, &features, &bands), name);
  Check(edgernn_sample_rate(model, &listener.rate), name);
  Check(edgernn_detection(model, &listener.detection), name);
  if (bands == 0) {
    Fail(
        "%s: expected a model that reads audio, got one without a front end; train it with "
        "frontend=logmel",
        name);
  }
  const size_t classes = (size_t)sizes.output;
  listener.names = Allocate(classes * sizeof *listener.names);
  for (int64_t k = 0; k < sizes.output; ++k) {
    Check(edgernn_class_name(model, k, &listener.names[k]), name);
  }
  if (listener.rate == 0 || listener.names[0] == NULL) {
    Fail(
        "%s: expected the sample rate and the names of the classes in the file, got none; export "
        "the model from its run directory, and pack it",
        name);
  }
  listener.x = Allocate((size_t)sizes.input * sizeof(float));
  listener.y = Allocate(classes * sizeof(float));
  return listener;
}

static void Run(Listener* listener, const char* source) {
  const PackedModel* const packed = &listener->packed;
  const int64_t hop = packed->sizes.input, rate = listener->rate;
  WordDetector detector = MakeDetector(listener->names, packed->sizes.output,
                                       (double)hop / (double)rate, listener->detection);
  Audio audio = OpenAudio(source, rate);
  const int64_t *updates = NULL, *macs = NULL;
  Check(edgernn_work(packed->model, &updates, &macs), packed->name);
  int64_t steps = 0, words = 0, updated = 0;
  size_t count = 0;
  double took = 0;
  while (!is_interrupted &&
         (count = ReadSamples(&audio, listener->x, (size_t)hop)) == (size_t)hop) {
    const double start = Microseconds();
    Check(edgernn_step(packed->model, listener->x, listener->y), packed->name);
    double score = 0;
    const int64_t word = DetectWord(&detector, listener->y, &score);
    took += Microseconds() - start;
    ++steps;
    updated += updates == NULL ? packed->sizes.neurons : *updates;
    if (word < 0) continue;
    ++words;
    printf("%9.2f s  %s  %.2f\n", (double)(steps * hop) / (double)rate, listener->names[word],
           score);
    fflush(stdout);
  }
  if (steps == 0) {
    Fail("%s: expected at least %lld samples, one step of the model, got %zu; record more",
         audio.name, (long long)hop, count);
  }
  const double seconds = (double)(steps * hop) / (double)rate;
  const double all = (double)steps * (double)packed->sizes.neurons;
  printf("%s: %lld words in %.1f s\n", audio.name, (long long)words, seconds);
  fprintf(stderr, "updates skipped: %.1f %%\n", 100 * (1 - (double)updated / all));
  fprintf(stderr, "%.1f us of steps per second of audio: %.3f %% of real time\n", took / seconds,
          took / seconds * 1e-4);
}

/* Replaces a setting of the file by that of an option, if the option was given. */
static void Replace(double* setting, const char* text, int option) {
  if (text == NULL) return;
  char* end = NULL;
  *setting = strtod(text, &end);
  if (end == text || *end != '\0') Fail("-%c: expected a number, got %s", option, text);
}

int main(int argc, char** argv) {
  const char *threshold = NULL, *smoothing = NULL, *refractory = NULL;
  int option;
  while ((option = getopt(argc, argv, "t:s:r:")) != -1) {
    if (option == 't') threshold = optarg;
    if (option == 's') smoothing = optarg;
    if (option == 'r') refractory = optarg;
    if (option == '?') return 2;
  }
  if (argc - optind != 2) {
    fprintf(stderr,
            "usage: words [-t THRESHOLD] [-s SMOOTHING] [-r REFRACTORY] model.edgernn FILE.wav\n"
            "       arecord -f S16_LE -r 16000 | words model.edgernn -\n");
    return 2;
  }
  HandleInterrupt();
  Listener listener = OpenListener(argv[optind]);
  Replace(&listener.detection.threshold, threshold, 't');
  Replace(&listener.detection.smoothing, smoothing, 's');
  Replace(&listener.detection.refractory, refractory, 'r');
  Run(&listener, argv[optind + 1]);
  return 0;
}
