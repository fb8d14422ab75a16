// What the headers of all targets are read for (BuildTime.cmake).
