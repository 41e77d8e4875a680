"""Which machine this is: `setup`, its card, the doctor."""
