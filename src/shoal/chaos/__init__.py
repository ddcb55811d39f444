"""`shoal chaos`: kills, stops, hangs and starves Shoal's processes, and checks that no promise is broken."""
