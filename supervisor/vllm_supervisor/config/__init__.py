"""The settings, declared once; documentation and the example file come from the declarations."""
