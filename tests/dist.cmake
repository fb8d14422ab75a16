# Ranks: real processes of this machine.
flashlab_test(dist_communicator_test SOURCES dist_communicator_test.cpp LIBRARIES flashlab)
flashlab_test(dist_start_test SOURCES dist_start_test.cpp LIBRARIES flashlab)
