"""What a wheel was made of: its bill of materials (CycloneDX) and the statement of its provenance (SLSA).

Start with `model`.
"""
