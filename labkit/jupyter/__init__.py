"""What serves JupyterLab: the lab itself, its proxy, TensorBoard and the exchange."""
