# Training steps: the list, its memory, its arithmetic.
if(FLASHLAB_BUILD_CLI)
  flashlab_test(train_plan_test SOURCES train_plan_test.cpp LIBRARIES flashlab_train)
endif()
