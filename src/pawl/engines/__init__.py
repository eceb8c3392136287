"""The engines: what asks for work. Rooms of one shape; none imports another, they meet in the control plane."""
