# Training steps: the list, its memory, its arithmetic.
if(FLASHLAB_BUILD_CLI)
  flashlab_test(train_plan_test SOURCES train_plan_test.cpp LIBRARIES flashlab_train)
  flashlab_test(train_gradient_test SOURCES train_gradient_test.cpp train_optimizer_test.cpp
    LIBRARIES flashlab_train)
endif()
