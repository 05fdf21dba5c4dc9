"""What must hold for compiled code to be used again: guards, their messages, and which sizes may change."""
