"""What tests share; it is no part of catlog."""
