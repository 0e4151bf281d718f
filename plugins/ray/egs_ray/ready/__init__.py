"""Worker processes that stand ready between drivers: Ray starts them, and the next driver's tasks take them."""
