"""One outside facility a file. An adapter imports core and one third-party library, and no other adapter."""
