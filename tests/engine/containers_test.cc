#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "daemon/engine/flat_map.h"
#include "daemon/engine/intrusive_list.h"
#include "daemon/engine/task.h"

namespace gradwire::engine {
namespace {

struct Item {
  explicit Item(int v) : value(v) {}
  int value;
  Hook<Item> hook{this};
};

TEST(FlatMap, AgreesWithStdMapUnderRandomUse) {
  std::minstd_rand random(7);
  FlatMap<int> map;
  std::map<uint64_t, int*> expected;
  std::vector<int> values(64);
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t key = (random() % 97) * 0x100000000u;
    if (expected.contains(key)) {
      map.erase(key);
      expected.erase(key);
    } else if (expected.size() < 60) {
      map.insert(key, &values[key % 64]);
      expected[key] = &values[key % 64];
    }
    map.erase(12345);  // never there
    ASSERT_EQ(map.size(), expected.size());
    const uint64_t probe = (random() % 97) * 0x100000000u;
    ASSERT_EQ(map.find(probe), expected.contains(probe) ? expected[probe] : nullptr);
  }
}

TEST(FlatMap, FindsNothingWhenEmpty) {
  FlatMap<int> map;
  map.erase(1);
  EXPECT_EQ(map.find(0), nullptr);
}

TEST(List, KeepsTheOrderInWhichItWasFilled) {
  List<Item> list;
  Item a(1), b(2), c(3);
  list.push_back(a.hook);
  list.push_back(b.hook);
  list.push_back(a.hook);  // already there
  List<Item> other;
  other.push_back(c.hook);
  list.append(other);
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(list.pop_front(), &a);
  EXPECT_EQ(list.pop_front(), &b);
  EXPECT_EQ(list.pop_front(), &c);
  EXPECT_EQ(list.pop_front(), nullptr);
}

TEST(List, ForgetsMembersThatDie) {
  List<Item> list;
  Item a(1);
  {
    Item b(2);
    list.push_back(b.hook);
    list.push_back(a.hook);
  }
  EXPECT_EQ(list.pop_front(), &a);
  EXPECT_TRUE(list.empty());
}

TEST(List, LeavesItsMembersFreeWhenItDies) {
  Item a(1);
  {
    List<Item> list;
    list.push_back(a.hook);
  }
  EXPECT_FALSE(a.hook.linked());
}

TEST(FramePool, LendsTheSameMemoryAgain) {
  FramePool pool;
  void* const first = pool.allocate(200);
  void* const second = pool.allocate(200);
  EXPECT_NE(first, second);
  FramePool::release(first);
  EXPECT_EQ(pool.allocate(210), first);
  FramePool::release(first);
  FramePool::release(second);
}

}  // namespace
}  // namespace gradwire::engine
