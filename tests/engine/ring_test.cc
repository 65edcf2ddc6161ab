// The two ends of a shared-memory ring on two threads: nothing is lost, nothing arrives twice, nobody sleeps
// through a message. Meant for the thread sanitizer as well.
#include "client/layout/ring.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

namespace gradwire::layout {
namespace {

struct Ring {
  explicit Ring(uint32_t size) : capacity(size), slots(size), event(::eventfd(0, EFD_NONBLOCK)) {}
  ~Ring() { ::close(event); }
  RingProducer<Submission> producer() { return {control.get(), slots.data(), capacity}; }
  RingConsumer<Submission> consumer() { return {control.get(), slots.data(), capacity}; }
  const uint32_t capacity;
  std::unique_ptr<RingControl> control = std::make_unique<RingControl>();
  std::vector<Submission> slots;
  const int event;
};

Submission numbered(uint64_t number) {
  Submission submission{};
  submission.user_data = number;
  submission.sequence = ~number;
  submission.reserved[27] = static_cast<uint8_t>(number);
  return submission;
}

void produce(Ring& ring, uint64_t count) {
  RingProducer<Submission> producer = ring.producer();
  for (uint64_t i = 0; i < count;) {
    bool wake = false;
    if (producer.push(numbered(i), &wake) != RingState::kOk) {
      std::this_thread::yield();
      continue;
    }
    ++i;
    if (wake) {
      const uint64_t one = 1;
      ASSERT_EQ(::write(ring.event, &one, sizeof(one)), 8);
    }
    if (i % 97 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // lets the consumer fall asleep
    }
  }
}

// Returns how often it slept.
uint64_t consume(Ring& ring, uint64_t count) {
  RingConsumer<Submission> consumer = ring.consumer();
  uint64_t sleeps = 0;
  for (uint64_t i = 0; i < count;) {
    Submission got;
    const RingState state = consumer.pop(&got);
    if (state == RingState::kOk) {
      const Submission expected = numbered(i);
      EXPECT_EQ(std::memcmp(&got, &expected, sizeof(got)), 0) << i;
      ++i;
      continue;
    }
    EXPECT_EQ(state, RingState::kEmpty);
    if (!consumer.prepare_sleep()) {
      continue;
    }
    ++sleeps;
    pollfd waiting{ring.event, POLLIN, 0};
    if (::poll(&waiting, 1, 20'000) != 1) {
      ADD_FAILURE() << "slept through message " << i;
      return sleeps;
    }
    uint64_t ignored;
    EXPECT_EQ(::read(ring.event, &ignored, sizeof(ignored)), 8);
    consumer.cancel_sleep();
  }
  return sleeps;
}

TEST(Ring, LosesNothingBetweenTwoThreadsThatSleep) {
  constexpr uint64_t kCount = 20'000;
  for (const uint32_t capacity : {1u, 8u, 4096u}) {
    Ring ring(capacity);
    std::thread producer([&] { produce(ring, kCount); });
    EXPECT_GT(consume(ring, kCount), 0u);
    producer.join();
  }
}

TEST(Ring, SaysFullAndGoesOnWhenThereIsRoom) {
  Ring ring(2);
  auto producer = ring.producer();
  auto consumer = ring.consumer();
  bool wake = true;
  EXPECT_EQ(producer.push(numbered(0), &wake), RingState::kOk);
  EXPECT_FALSE(wake);
  EXPECT_EQ(producer.push(numbered(1), &wake), RingState::kOk);
  EXPECT_EQ(producer.push(numbered(2), &wake), RingState::kFull);
  Submission got;
  EXPECT_EQ(consumer.pop(&got), RingState::kOk);
  EXPECT_EQ(producer.push(numbered(2), &wake), RingState::kOk);
}

TEST(Ring, ProducerNoticesACounterThatMakesNoSense) {
  Ring ring(4);
  auto producer = ring.producer();
  ring.control->head.store(1, std::memory_order_release);  // consumed what was never produced
  bool wake = false;
  EXPECT_EQ(producer.push(numbered(0), &wake), RingState::kCorrupt);
}

TEST(Ring, ConsumerNoticesACounterThatMakesNoSense) {
  Ring ring(4);
  auto consumer = ring.consumer();
  Submission got;
  ring.control->tail.store(5, std::memory_order_release);
  EXPECT_EQ(consumer.pop(&got), RingState::kCorrupt);
  ring.control->tail.store(UINT64_MAX, std::memory_order_release);
  EXPECT_EQ(consumer.pop(&got), RingState::kCorrupt);
}

TEST(Ring, DoesNotSleepOverAMessage) {
  Ring ring(4);
  auto producer = ring.producer();
  auto consumer = ring.consumer();
  bool wake = false;
  EXPECT_TRUE(consumer.prepare_sleep());
  EXPECT_EQ(producer.push(numbered(0), &wake), RingState::kOk);
  EXPECT_TRUE(wake);
  EXPECT_FALSE(consumer.prepare_sleep());
}

}  // namespace
}  // namespace gradwire::layout
