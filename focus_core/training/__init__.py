"""Training of routers and of the control that stands beside them; the pretrained weights stay frozen."""
