"""The arithmetic of each layer in the form the device wants: tensors in, tensors out."""
