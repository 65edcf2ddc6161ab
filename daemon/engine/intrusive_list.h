// A doubly linked list whose links live in its members: no allocation, and a member that dies leaves its
// list.
#pragma once

namespace gradwire::engine {

template <typename T>
class List;

template <typename T>
class Hook {
 public:
  explicit Hook(T* owner) : owner_(owner) {}
  ~Hook() { unlink(); }
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  bool linked() const { return next_ != nullptr; }
  void unlink() {
    if (next_ != nullptr) {
      previous_->next_ = next_;
      next_->previous_ = previous_;
      previous_ = next_ = nullptr;
    }
  }

 private:
  friend class List<T>;
  T* owner_;
  Hook* previous_ = nullptr;
  Hook* next_ = nullptr;
};

// First in, first out; a hook is in one list at a time.
template <typename T>
class List {
 public:
  List() { ends_.previous_ = ends_.next_ = &ends_; }
  ~List() {
    while (pop_front() != nullptr) {
    }
    ends_.previous_ = ends_.next_ = nullptr;
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  bool empty() const { return ends_.next_ == &ends_; }
  T* front() const { return empty() ? nullptr : ends_.next_->owner_; }
  // Does nothing if the hook is in a list already.
  void push_back(Hook<T>& hook) {
    if (!hook.linked()) {
      hook.previous_ = ends_.previous_;
      hook.next_ = &ends_;
      ends_.previous_->next_ = &hook;
      ends_.previous_ = &hook;
    }
  }
  T* pop_front() {
    T* const first = front();
    if (first != nullptr) {
      ends_.next_->unlink();
    }
    return first;
  }
  // Takes over everything that `other` holds, in order, behind what is here.
  void append(List& other) {
    while (!other.empty()) {
      Hook<T>* const hook = other.ends_.next_;
      hook->unlink();
      push_back(*hook);
    }
  }

 private:
  Hook<T> ends_{nullptr};
};

}  // namespace gradwire::engine
